"""Reproduce: tables and figures of the papers from shipped models and stored audits."""
