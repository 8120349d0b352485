"""Quality: how good are counterfactuals? Several methods on the same pictures.

`run` chooses pictures and targets, `methods` makes the counterfactuals, `measures` turns them into
numbers, `real` compares them with photographs of the target class.
"""
