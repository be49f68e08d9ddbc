package dcpwriter_test

import (
	"testing"

	"github.com/hbmfs/hbmfs/tests/suites/python/themes"
)

func TestPythonDCPWriter(t *testing.T) { themes.Run(t, "dcpwriter") }
