"""95 % intervals: closed forms, bootstrap, calibration errors, temperature."""
