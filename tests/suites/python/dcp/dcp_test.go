package dcp_test

import (
	"testing"

	"github.com/hbmfs/hbmfs/tests/suites/python/themes"
)

func TestPythonDCP(t *testing.T) { themes.Run(t, "dcp") }
