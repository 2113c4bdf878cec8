"""Mutation testing: does a test fail when one place of the source is changed?"""
