"""The methods of the table behind one protocol: fit, predict → Predictive."""
