"""Suites: built-in problems, KernelBench, files -> Task. (Not upstream KernelBench's package.)"""
