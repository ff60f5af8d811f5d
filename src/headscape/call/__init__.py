"""One attention call as data, and its definition.

positions.py    Positions, Visible: where queries and keys are, which keys a query sees
bias.py         what is added to the scores
mixing.py       how whole rows of scores are mixed
rotation.py     what queries and keys are turned by
transition.py   how keys change on the way to a query
weighting.py    weights that are not a softmax
definition.py   AttentionCall, its scores, weights and output, and any block of its scores
parts.py        some heads, queries and keys of every tensor of a call
"""
