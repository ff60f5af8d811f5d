"""Where documents come from: local files, the standard library, the Hugging Face hub."""
