"""Code that tasks with labels share: encoder predictors, ranked labels, baselines, embeddings."""
