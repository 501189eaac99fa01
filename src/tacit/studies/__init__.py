"""Studies: methods compared over epsilons, seeds and settings, from one file.

study_file     the file: a base experiment, contenders, axes, how settings are chosen
trainings      every training of a study, planned before any work
trial          one training, in memory
study_workers  trainings in several processes, or on a cluster
outcomes       what finished trainings found: the file that keeps them, tables, differences
study          plan, run, resume, write
study_page     the page
"""
