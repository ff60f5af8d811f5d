"""Models behind one protocol: training runs, a GPT2 in memory, RoPE stretched, published ones."""
