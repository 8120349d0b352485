"""Figures and tables of the papers, made again with what is shipped.

figure      a figure, by name
figure13    the edits of Figure 13 of the DiG-IN paper
table1      Table 1 of the RATIO paper beside ours

>>> import counterlens as cl
>>> sorted(cl.reproduce.__all__)
['figure', 'figure13', 'table1']
"""

from typing import TYPE_CHECKING

from counterlens.lazy import lazily

if TYPE_CHECKING:
    from counterlens.workflows.reproduce.digin_figure13 import figure13
    from counterlens.workflows.reproduce.figures import figure
    from counterlens.workflows.reproduce.table1 import table1

__all__ = ["figure", "figure13", "table1"]

__getattr__, __dir__ = lazily(
    "counterlens.reproduce",
    {
        "figure": "workflows.reproduce.figures",
        "figure13": "workflows.reproduce.digin_figure13",
        "table1": "workflows.reproduce.table1",
    },
)
