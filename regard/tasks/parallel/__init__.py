"""Training of non-autoregressive models: data with fertilities, objectives, a teacher, distillation."""
