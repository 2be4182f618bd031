"""What is learnt: batch + model -> sums."""
