"""The search: proposers, journal, campaign loop, Ray engine, export.

`launch.py` opens a campaign from its config and runs it; `types.py` has the nouns, `model.py` and
`learner.py` the seams to language models and to training. Beside them:

    journals/    what a campaign wrote down, and what can be told from it
    engines/     where work runs: lanes and builds, here or on Ray
    loop/        whose turn it is, what it may spend, when it is done
    proposing/   from a task and its journal to candidates, by way of models/, prompts/,
                 strategies/, memory/ (what earlier runs found) and features/ (without a model)
    views/       what a user sees in a terminal; report/ is the page
    export/      kernels as files and packages; extraction/ finds tasks in a model, substitution/
                 puts kernels back
    commands/    the command line, above all else
"""
