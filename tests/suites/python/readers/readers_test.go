package readers_test

import (
	"testing"

	"github.com/hbmfs/hbmfs/tests/suites/python/themes"
)

func TestPythonReaders(t *testing.T) { themes.Run(t, "readers") }
