"""What operators see of a server: metrics for Prometheus, the status service and its page.

    server_state.py   what all of them read
    metrics.py        as metrics of Prometheus
    status.py         as tokenfeed.v1.Status
    status_page/      as a page
    residency.py      which share of a dataset is in memory

What streams do is counted in ../activity/.
"""
