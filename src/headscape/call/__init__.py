"""One attention call as data, and its definition.

positions.py    Positions, Turn, Visible: where queries and keys are, what they are turned by, and
                which keys a query sees
quantities.py   the names of what is shown of a call, without torch
bias.py         what is added to the scores
mixing.py       how whole rows of scores are mixed
transition.py   how keys change on the way to a query
weighting.py    weights that are not a softmax
definition.py   AttentionCall, its scores, weights and output, any block of its scores, and a part
                of it: some heads, queries and keys of every tensor
"""
