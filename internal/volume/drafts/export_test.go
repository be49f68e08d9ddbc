package drafts

// Hold keeps all drafts busy, as sealing and publishing do, until release is called.
func (s *Server) Hold() (release func()) {
	all := s.list()
	for _, d := range all {
		d.mu.Lock()
	}
	return func() {
		for _, d := range all {
			d.mu.Unlock()
		}
	}
}
