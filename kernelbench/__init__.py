"""Suites: built-in problems, KernelBench checkouts, single files -> Task. (Not upstream KernelBench's package.)"""
