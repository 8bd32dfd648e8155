"""gRPC: listens, admits calls, answers them and encodes frames. Tokens come from rows/.

listener.py         the port: bound, and closed in time
security.py         TLS and bearer tokens
admission.py        which calls are admitted, and for how long their clients may do nothing
error_status.py     the error of a call -> its gRPC status, counted
service.py          TokenFeed: a request -> its frames
frame_producer.py   the frames of a call: rows -> messages, and how large they are
fair_scheduler.py   whose frame is made next
provenance.py       the service Provenance: answers of datasets/provenance/, which pause for streams
health.py, reflection.py    the services of gRPC itself
activity/           counts what streams do
monitoring/         shows it
"""
