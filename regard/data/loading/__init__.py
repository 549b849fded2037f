"""Plans steps from (seed, epoch, costs, budget) and turns them into batches, here or in worker processes.

Plans and batches depend on neither the number of workers nor of processes. Encoding belongs to `datasets`.
"""
