"""Target strings and the features of targets."""
