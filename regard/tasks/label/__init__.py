"""What tasks that choose labels share: encoder predictors, ranked labels, baselines, embeddings."""
