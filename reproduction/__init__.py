"""The paper's reproduction: its small experiments, its claims, and the results of both.

It uses burn as anyone would, is in burn's repository alone, and burn imports nothing of it.
"""
