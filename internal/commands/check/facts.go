package check

// Filesystem is the type of the filesystem that the judged path lies on, as in /proc/mounts; "" where it is not known.
func (m *Machine) Filesystem() string {
	if m.Target == nil {
		return ""
	}
	j := &judge{m: m, target: m.Target}
	for _, p := range m.Target.Places {
		if mount := j.mountOfPlace(p); mount != nil {
			return mount.Type
		}
	}
	return ""
}

// CuFileVersion is that of the newest libcufile that was found, 1015 for 1.15 as cuFileGetVersion counts; 0 where no
// file's name says one.
func (m *Machine) CuFileVersion() int {
	if len(m.Libraries) == 0 {
		return 0
	}
	v := libraryVersion(m.Libraries[0])
	return 1000*v[0] + v[1]
}
