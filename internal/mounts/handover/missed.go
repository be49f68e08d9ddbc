package handover

// misses notes that a file was kept or forgotten while a daemon starts, nil for none.
func (d *daemon) misses(name string) {
	if d == nil {
		return
	}
	if d.missed == nil {
		d.missed = map[string]bool{}
	}
	d.missed[name] = true
}

// catchUp tells a daemon which descriptors were kept and forgotten since it started.
func (k *keeper) catchUp(d *daemon) {
	for name := range d.missed {
		m := say("FDSTOREREMOVE=1", "FDNAME="+name)
		if fd, ok := k.store[name]; ok {
			m = say("FDNAME=" + name).with(fd)
		}
		if err := send(d.socket, m); err != nil {
			k.say("the next daemon cannot be told: %v", err)
		}
	}
	d.missed = nil
}
