"""Why a model breaks past its trained length, and which remedy mends it.

diagnose.py runs the five stages; a remedy is an entry of remedies.py, made of a change of the
attention call (changes.py), which models/changed.py runs in place of the model's own.
"""
