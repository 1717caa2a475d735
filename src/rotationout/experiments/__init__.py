"""Training runs on real data. Each writes a plain JSON record; `rotationout.report` makes tables and figures of them.

`run` is the training loop that all tasks share, `tasks` lists the tasks, and `sweep` runs many configs side by side.
"""
