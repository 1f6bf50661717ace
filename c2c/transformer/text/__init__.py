"""Text processing: tokenizers, chat templates and streaming decoders."""
