"""The publisher service: follows an engine and says what its cache holds.

settings ─▶ main ─▶ one session per engine rank: follower ─▶ reader ─▶ life(mirror) ─▶ deliveries
"""
