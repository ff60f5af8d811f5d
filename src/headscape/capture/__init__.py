"""From a model at work to arrays: the only place where a tensor becomes an array."""
