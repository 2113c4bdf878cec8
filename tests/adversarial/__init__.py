"""What strangers, full disks and bad luck do to densecal: a catalogue, one file per class of attack."""
