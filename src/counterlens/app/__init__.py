"""The app: a local web page over run folders. `counterlens app RUNS` starts it.

`server` puts the parts together behind `security`. `folders` says which files may be opened,
`decoder` reads pictures in child processes, so that the server loads neither torch nor Pillow.
`browse` shows runs, `ask` starts explanations as child processes (`jobs`), `judge` collects
verdicts on what `reviewable` finds in a run, `study` asks which counterfactual is better, and
`repairs` puts receipts side by side.
"""
