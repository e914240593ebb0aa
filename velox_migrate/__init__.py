"""What those who come from another proxy need: LiteLLM's files and database, and the paths of its management.

A package of its own beside velox, installed with it. Two places of velox import it: the command line (`velox import`,
command.py), and the admin process where accounts are kept (admin/paths.py).

    litellm.py         a configuration file as a Velox file, and notes on what could not be carried over
    litellm_prices.py  its prices as Velox's
    import_db.py       its database, or a dump of one: keys, teams, users and spend into Velox's accounts
    admin/             its paths of keys, teams, users and spend on the admin listener
    account_fields.py  what its fields of keys, teams and users are here

Of velox it uses what settings, accounts, records and prices are, and how the admin API answers: nothing of a request's
way.
"""
