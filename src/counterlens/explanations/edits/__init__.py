"""Small edits of colour and frame, and whether they change the prediction."""
