"""Sources of documents: local files, the standard library, the Hugging Face hub."""
