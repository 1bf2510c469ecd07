"""Training: data, mining, distillation, losses and the training loop."""
