"""Published models of other architectures, through the optional package transformers.

open_published.py    opens and checks one; hub.py, model_folder.py, offload.py  where weights are
attention_watch.py   sees every attention while the model runs
layer_reading.py     recognises a layer's position as one of our encodings
families.py          what is known of a family beside that
"""
