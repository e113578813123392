"""The programs are run by the launcher, in processes of their own."""

collect_ignore_glob = ["programs/*"]
