"""Tokenizers: bytes, a trained BPE, and the BPE of GPT-2."""
