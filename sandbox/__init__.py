"""What is a task, a candidate, a verdict; build, run, measure, judge. Trusts nobody, imports
none of the others.
"""
