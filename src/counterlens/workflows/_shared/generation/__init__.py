"""What workflows share that change or draw images: options, settings, the generator, the loop.

`search_options` are what a command may be given, `edit_settings` what `--set` changes, `generator`
opens the model that draws, and `generate` optimises and writes the images.
"""
