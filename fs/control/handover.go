package control

import (
	"errors"

	"github.com/hbmfs/hbmfs/layout"
)

// Names of the files that a holder keeps for the server.
const (
	keptControl = "control" // the listening socket
	keptPlans   = "plans"   // announcements of readers
	keptChanges = "changes" // the counter of changes at the source
)

// Begin makes the descriptors that the next daemon takes over while this one lives.
func (s *Server) Begin() (err error) {
	s.openChanges(nil)
	if s.opt.Life != nil && s.opt.Cache != nil {
		s.plans, err = newPlansBook()
	}
	return err
}

// Keep gives the holder Begin's descriptors, and the socket.
func (s *Server) Keep() (err error) {
	if s.plans != nil {
		err = s.opt.Life.Keep(keptPlans, s.plans.file)
	}
	if f := s.changes.file; f != nil {
		err = errors.Join(err, s.opt.Life.Keep(keptChanges, f))
	}
	if s.listener != nil {
		err = errors.Join(err, s.opt.Life.Keep(keptControl, s.listener))
	}
	return err
}

// TakeOver takes the state of the daemon before, once that is gone.
func (s *Server) TakeOver() {
	s.openChanges(s.opt.Life.Took(keptChanges))
	s.bound.Store(s.opt.Life.Has(keptControl))
}

// RecordObjects has record called with each new number of a backing file before anybody hears of it.
func (s *Server) RecordObjects(record func(id uint64, o *layout.Object)) { s.objects.record = record }

// AdoptObject takes a number that an earlier daemon has given, for a file that is still there, or nil.
func (s *Server) AdoptObject(id uint64, o *layout.Object) { s.objects.adopt(id, o) }

// ForgetObjects drops the numbers of files that are gone.
func (s *Server) ForgetObjects(gone []*layout.Object) { s.objects.forget(gone) }
