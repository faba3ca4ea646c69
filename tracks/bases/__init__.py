"""Public models: Llama, Qwen2, Qwen3 and Gemma 3 come in, are trained, evaluated and served here, and go out again."""
