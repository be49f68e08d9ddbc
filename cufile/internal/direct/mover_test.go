package direct

import (
	"errors"
	"testing"

	"github.com/hbmfs/hbmfs/cufile/internal/driver"
	"github.com/hbmfs/hbmfs/cufile/internal/source"
)

// TestFailedRegistrationForgetsNoOther has another read register the file before this one learns that its own registration failed.
func TestFailedRegistrationForgetsNoOther(t *testing.T) {
	d, b := New(Options{Compat: true}), &source.Backing{}
	second := &handle{func() (driver.Handle, error) { return 7, nil }}
	failed := errors.New("no room")
	d.files[b] = &handle{func() (driver.Handle, error) {
		d.files[b] = second
		return 0, failed
	}}
	if _, err := d.handle(b); !errors.Is(err, failed) {
		t.Errorf("the first registration: %v, want %v", err, failed)
	}
	if h, err := d.handle(b); h != 7 || err != nil {
		t.Errorf("the second registration: handle %d, %v; want 7", h, err)
	}
}
