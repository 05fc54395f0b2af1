"""Accelerators that are not there: the engines and stages of a run, each waiting for as long as a cost table says the work would take.

Everything else of such a run is real: controller, shards, flow control, publisher, worker loops, columns of the right shapes. No torch anywhere.
Times are modelled seconds (of the machine in the table); one second of this machine is `time_scale` of them.
"""
