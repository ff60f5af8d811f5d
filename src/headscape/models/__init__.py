"""Models behind one protocol: training runs, a GPT2 in memory, stretched RoPE, published models."""
