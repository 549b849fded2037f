"""What training to write all tokens at once needs: data with fertilities, objectives, a teacher, distillation."""
