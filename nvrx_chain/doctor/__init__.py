"""`nvrx-chain doctor`: does this site give a chain what it needs?"""
